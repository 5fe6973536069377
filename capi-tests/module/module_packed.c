// Packed sequences through modules with attention, with padding between and behind them, against
// each sequence alone.
#include "support.h"

enum { HIDDEN = 32, HEADS = 4, FFN = 48, SEQUENCES = 3, MOST_PARAMETERS = 48, MOST = 9 };

static const int32_t kSums[SEQUENCES + 1] = {0, 3, 12, 17}, kPadded[SEQUENCES + 1] = {0, 5, 14, 21};
static const int32_t kMemorySums[SEQUENCES + 1] = {0, 4, 6, 13};

typedef struct Setup {
  const char *name;
  size_t groups, rotary;
  bool decoder, padded, checkpoint, alone;  // alone: attention without the layer
  NVTEXQKNorm norm;
  NVTE_Softmax_Type softmax;
} Setup;

typedef struct Module {
  NVTEXModule module;
  size_t count;
  Buffer *grads[MOST_PARAMETERS];
  size_t sizes[MOST_PARAMETERS];
} Module;

static Module create(NVTEXContext context, const Setup *s, NVTEDType dtype, bool packed) {
  Module m = {0};
  NVTEXTransformerLayerConfig c;
  nvtex_transformer_layer_config_init(&c, sizeof c);
  c.attention.num_attention_heads = HEADS;
  c.attention.num_gqa_groups = s->groups;
  c.attention.qkv_format = packed ? NVTE_THD : NVTE_BSHD;
  c.attention.attn_mask_type = packed ? NVTE_PADDING_CAUSAL_MASK : NVTE_CAUSAL_MASK;
  c.attention.qk_norm_type = s->norm;
  c.attention.softmax_type = s->softmax;
  c.attention.checkpoint_core_attention = s->checkpoint;
  c.attention.dtype = c.mlp.dtype = dtype;
  c.mlp.hidden_size = HIDDEN;
  c.mlp.ffn_hidden_size = FFN;
  c.mlp.init_std = c.mlp.output_init_std = 0.2f;
  c.decoder = s->decoder;
  if (packed) c.inter_mask_type = NVTE_PADDING_MASK;
  if (s->alone) {
    NVTEXMultiheadAttentionConfig a;
    nvtex_multihead_attention_config_init(&a, sizeof a);
    a.hidden_size = HIDDEN;
    a.attention = c.attention;
    a.init_std = a.output_init_std = 0.2f;
    m.module = nvtex_multihead_attention_create(context, &a, NULL);
  } else {
    m.module = nvtex_transformer_layer_create(context, &c, NULL);
  }
  EXPECT_OK();
  m.count = nvtex_module_num_parameters(m.module);
  for (size_t i = 0; i < m.count; i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(m.module, i, &p);
    m.sizes[i] = numel(p.shape);
    m.grads[i] = buffer(m.sizes[i] * sizeof(float));
    nvte_memset(m.grads[i]->ptr, 0, m.sizes[i] * sizeof(float), NULL);
    nvtex_module_set_gradient(m.module, i, tensor(m.grads[i]->ptr, kNVTEFloat32, p.shape), true);
    EXPECT_OK();
  }
  return m;
}

static NVTETensor sums_tensor(const int32_t *sums) {
  return tensor(buffer_from(sums, (SEQUENCES + 1) * sizeof *sums, 0)->ptr, kNVTEInt32,
                SHAPE(SEQUENCES + 1));
}

static void close_to(const char *name, NVTEDType dtype, const void *got, const void *expected,
                     size_t count, double tolerance) {
  double error = 0, size = 1e-12;
  for (size_t i = 0; i < count; i++) {
    const double a = get_value(dtype, got, i), b = get_value(dtype, expected, i);
    error += (a - b) * (a - b);
    size += b * b;
  }
  CHECK(sqrt(error / size) <= tolerance, "%s: relative error %g", name, sqrt(error / size));
}

static void compare(const Setup *s, NVTEDType dtype) {
  const size_t size = dtype_size(dtype), row = HIDDEN * size;
  const int32_t *starts = s->padded ? kPadded : kSums;
  // There are a few tokens after all sequences.
  const size_t tokens = (size_t)starts[SEQUENCES] + 2,
               memory_tokens = (size_t)kMemorySums[SEQUENCES];
  NVTEXContext context = nvtex_context_create(NULL);
  Module packed = create(context, s, dtype, true), alone = create(context, s, dtype, false);
  CHECK_EQ(packed.count, alone.count);
  char *x = random_values(dtype, tokens * HIDDEN, -1.5, 1.5);
  char *memory = random_values(dtype, memory_tokens * HIDDEN, -1.5, 1.5);
  char *dy = random_values(dtype, tokens * HIDDEN, -1, 1);
  for (size_t t = 0; t < tokens; t++) {
    bool used = false;
    for (int b = 0; b < SEQUENCES; b++) {
      const int32_t at = (int32_t)t - starts[b];
      used = used || (at >= 0 && at < kSums[b + 1] - kSums[b]);
    }
    if (!used) memset(dy + t * row, 0, row);
  }
  Buffer *bx = buffer_from(x, tokens * row, 0), *bm = buffer_from(memory, memory_tokens * row, 0);
  Buffer *bdy = buffer_from(dy, tokens * row, 0), *y = buffer(tokens * row);
  Buffer *dx = buffer(tokens * row), *dm = buffer(memory_tokens * row);
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  if (s->rotary) {
    const size_t rows = s->padded ? tokens : MOST;
    Buffer *b = buffer(rows * s->rotary * sizeof(float));
    step.rotary_frequencies = tensor(b->ptr, kNVTEFloat32, SHAPE(rows, 1, 1, s->rotary));
    nvtex_rotary_frequencies(step.rotary_frequencies, NULL, NULL);
  }
  step.cu_seqlens_q = sums_tensor(kSums);
  step.cu_seqlens_kv = sums_tensor(kMemorySums);
  if (s->padded) {
    step.cu_seqlens_q_padded = sums_tensor(kPadded);
    step.cu_seqlens_kv_padded = sums_tensor(kMemorySums);
  }
  step.max_seqlen_q = step.max_seqlen_kv = MOST;
  const size_t inputs = s->decoder ? 2 : 1;
  NVTETensor in[2] = {tensor(bx->ptr, dtype, SHAPE(tokens, HIDDEN)),
                      tensor(bm->ptr, dtype, SHAPE(memory_tokens, HIDDEN))};
  NVTETensor out = tensor(y->ptr, dtype, SHAPE(tokens, HIDDEN));
  NVTETensor dout = tensor(bdy->ptr, dtype, SHAPE(tokens, HIDDEN));
  NVTETensor din[2] = {tensor(dx->ptr, dtype, SHAPE(tokens, HIDDEN)),
                       tensor(dm->ptr, dtype, SHAPE(memory_tokens, HIDDEN))};
  NVTEXTape tape = NULL;
  nvtex_module_forward(packed.module, in, inputs, &out, 1, &step, &tape, NULL);
  bool runs = EXPECT_OK();
  if (runs) {
    nvtex_module_backward(packed.module, tape, &dout, 1, din, inputs, NULL);
    nvtex_tape_destroy(tape);
    runs = EXPECT_OK();
  }
  const char *got_y = buffer_read(y), *got_dx = buffer_read(dx), *got_dm = buffer_read(dm);
  const double tolerance = dtype == kNVTEFloat32 ? (on_cuda() ? 3e-3 : 1e-5) : 2e-2;
  for (int b = 0; runs && b < SEQUENCES; b++) {
    const size_t length = (size_t)(kSums[b + 1] - kSums[b]), at = (size_t)starts[b] * row;
    const size_t length_kv = (size_t)(kMemorySums[b + 1] - kMemorySums[b]);
    const size_t memory_at = (size_t)kMemorySums[b] * row;
    NVTEXStep own;
    nvtex_step_init(&own, sizeof own);
    own.rotary_frequencies = step.rotary_frequencies;
    Buffer *ry = buffer(length * row), *rdx = buffer(length * row), *rdm = buffer(length_kv * row);
    NVTETensor ins[2] = {tensor(bx->ptr + at, dtype, SHAPE(1, length, HIDDEN)),
                         tensor(bm->ptr + memory_at, dtype, SHAPE(1, length_kv, HIDDEN))};
    NVTETensor outs = tensor(ry->ptr, dtype, SHAPE(1, length, HIDDEN));
    NVTETensor douts = tensor(bdy->ptr + at, dtype, SHAPE(1, length, HIDDEN));
    NVTETensor dins[2] = {tensor(rdx->ptr, dtype, SHAPE(1, length, HIDDEN)),
                          tensor(rdm->ptr, dtype, SHAPE(1, length_kv, HIDDEN))};
    nvtex_module_forward(alone.module, ins, inputs, &outs, 1, &own, &tape, NULL);
    nvtex_module_backward(alone.module, tape, &douts, 1, dins, inputs, NULL);
    nvtex_tape_destroy(tape);
    runs = EXPECT_OK();
    if (!runs) break;
    close_to("y", dtype, got_y + at, buffer_read(ry), length * HIDDEN, tolerance);
    close_to("dx", dtype, got_dx + at, buffer_read(rdx), length * HIDDEN, tolerance);
    if (s->decoder) {
      const size_t count = length_kv * HIDDEN;
      close_to("dmemory", dtype, got_dm + memory_at, buffer_read(rdm), count, tolerance);
    }
  }
  for (size_t i = 0; runs && i < packed.count; i++) {
    close_to("a parameter's gradient", kNVTEFloat32, buffer_read(packed.grads[i]),
             buffer_read(alone.grads[i]), packed.sizes[i], tolerance);
  }
  nvtex_module_destroy(packed.module);
  nvtex_module_destroy(alone.module);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

static void case_refusals(void) {
  if (!case_begin("refusals")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  const Setup s = {.groups = 2, .rotary = 8};
  Module m = create(context, &s, kNVTEFloat32, true);
  Buffer *b = buffer(10 * HIDDEN * sizeof(float));
  NVTETensor in = tensor(b->ptr, kNVTEFloat32, SHAPE(10, HIDDEN));
  NVTETensor out =
      tensor(buffer(10 * HIDDEN * sizeof(float))->ptr, kNVTEFloat32, SHAPE(10, HIDDEN));
  nvtex_module_forward(m.module, &in, 1, &out, 1, NULL, NULL, NULL);
  EXPECT_ERROR(
      NVTEX_INVALID_ARGUMENT,
      "nvtex_module_forward: step.cu_seqlens_q: expected Int32 [b + 1] (the format is NVTE_THD)");
  NVTETensor cube = tensor(b->ptr, kNVTEFloat32, SHAPE(2, 5, HIDDEN));
  nvtex_module_forward(m.module, &cube, 1, &out, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[0].shape: expected [tokens, 32]");
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  step.cu_seqlens_q = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvtex_module_forward(m.module, &in, 1, &out, 1, &step, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.cu_seqlens_q.dtype: expected Int32, got Float32");
  nvte_destroy_tensor(step.cu_seqlens_q);
  step.cu_seqlens_q = sums_tensor(kSums);
  Buffer *angles = buffer(MOST * 8 * sizeof(float));
  step.rotary_frequencies = tensor(angles->ptr, kNVTEFloat32, SHAPE(MOST, 1, 1, 8));
  nvtex_module_forward(m.module, &in, 1, &out, 1, &step, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.rotary_frequencies.shape: expected 10 rows or more");
  // What a step's tensors hold, under their own names.
  const struct {
    NVTETensor sums, angles;
    const char *text;
  } wrong[] = {
      {tensor(angles->ptr, kNVTEFloat32, SHAPE(4)), NULL,
       "step.cu_seqlens_q.dtype: expected Int32, got Float32"},
      {tensor(angles->ptr, kNVTEInt32, SHAPE(0)), NULL,
       "step.cu_seqlens_q.shape: expected [b + 1] for b sequences, got [0]"},
      {tensor(NULL, kNVTEInt32, SHAPE(4)), NULL,
       "step.cu_seqlens_q.data: expected a pointer to 16 bytes, got null"},
      {step.cu_seqlens_q, tensor(angles->ptr, kNVTEFloat16, SHAPE(MOST, 1, 1, 8)),
       "step.rotary_frequencies.dtype: expected Float32, got Float16"},
      {step.cu_seqlens_q, tensor(NULL, kNVTEFloat32, SHAPE(MOST, 1, 1, 8)),
       "step.rotary_frequencies.data: expected a pointer to"},
      {step.cu_seqlens_q, tensor(angles->ptr, kNVTEFloat32, SHAPE(10, 1, 1, 7)),
       "step.rotary_frequencies.shape: expected [1 or more, 1, 1, an even number up to"},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    step.cu_seqlens_q = wrong[i].sums;
    step.rotary_frequencies = wrong[i].angles;
    nvtex_module_forward(m.module, &in, 1, &out, 1, &step, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_module_forward: ", wrong[i].text);
  }
  nvtex_module_destroy(m.module);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  case_refusals();
  static const Setup setups[] = {
      {.name = "attention", .groups = HEADS, .alone = true},
      {.name = "turns", .groups = 2, .rotary = 8, .alone = true},
      {.name = "layer", .groups = 1, .rotary = 4},
      {.name = "padding", .groups = HEADS, .padded = true},
      {.name = "padding and turns", .groups = 2, .rotary = 8, .padded = true},
      {.name = "decoder", .groups = HEADS, .rotary = 8, .decoder = true},
      {.name = "decoder and padding", .groups = HEADS, .decoder = true, .padded = true},
      {.name = "norms", .groups = 2, .rotary = 8, .norm = NVTEX_QK_NORM_RMS, .padded = true},
      {.name = "again", .groups = HEADS, .checkpoint = true, .padded = true},
      {.name = "learnable", .groups = 2, .rotary = 8, .softmax = NVTE_LEARNABLE_SOFTMAX},
  };
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (size_t i = 0; i < COUNT(setups); i++) {
      if (case_begin("%s %s", setups[i].name, dtype_name(kHighPrecision[t]))) {
        compare(&setups[i], kHighPrecision[t]);
      }
    }
  }
  return test_end();
}
